/* A wall clock that somebody turns: for LD_PRELOAD. The file that EO_CLOCK names holds the seconds
 * it is off, as eight bytes; whoever writes there turns it at once. Only what the Python interpreter
 * and its own modules ask is answered so: all code of the product is Python. Libraries in C wait by the
 * clock of the kernel, and would wait for ever by a deadline of another one. The clock that measures
 * time (CLOCK_MONOTONIC) is left alone, as it is by those who set a machine's clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *off;

__attribute__((constructor)) static void open_dial(void) {
    const char *name = getenv("EO_CLOCK");
    int file = name ? open(name, O_RDONLY) : -1;
    void *seen = file < 0 ? MAP_FAILED : mmap(0, sizeof *off, PROT_READ, MAP_SHARED, file, 0);
    off = seen == MAP_FAILED ? 0 : seen;
}

static int64_t off_for(const void *caller) {
    Dl_info from;
    if (!off || !*off || !dladdr(caller, &from) || !from.dli_fname) return 0;
    return strstr(from.dli_fname, "python") && !strstr(from.dli_fname, "packages") ? *off : 0;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += off_for(__builtin_return_address(0));
    return failed;
}

int gettimeofday(struct timeval *now, void *zone) {
    int failed = (int)syscall(SYS_gettimeofday, now, zone);
    if (!failed && now) now->tv_sec += off_for(__builtin_return_address(0));
    return failed;
}

time_t time(time_t *where) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
    now.tv_sec += off_for(__builtin_return_address(0));
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
