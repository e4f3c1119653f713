package eo.pipeline;

import java.io.BufferedOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.parquet.hadoop.util.HadoopOutputFile;
import org.apache.parquet.io.OutputFile;
import org.apache.parquet.io.PositionOutputStream;

/**
 * A file that is a stream of this process: in memory, or on a local disk, where Hadoop starts a process
 * for the permissions of every file, of its checksums and of every folder.
 *
 * Spark's own Janino compiles this: no generics, no lambdas.
 */
class StreamFile implements OutputFile {
    private static final int BUFFERED = 1 << 16;

    private final OutputStream stream;

    StreamFile(OutputStream stream) {
        this.stream = stream;
    }

    static OutputFile of(Path path, Configuration conf) throws IOException {
        if (!makeFolder(path.getParent(), conf)) {
            return HadoopOutputFile.fromPath(path, conf);
        }
        File local = ((LocalFileSystem) path.getFileSystem(conf)).pathToFile(path);
        return new StreamFile(new BufferedOutputStream(new FileOutputStream(local), BUFFERED));
    }

    /** Makes a folder if it is local; whether it is. */
    static boolean makeFolder(Path folder, Configuration conf) throws IOException {
        FileSystem files = folder.getFileSystem(conf);
        if (!(files instanceof LocalFileSystem)) {
            return false;
        }
        ((LocalFileSystem) files).pathToFile(folder).mkdirs();
        return true;
    }

    public PositionOutputStream create(long blockSizeHint) {
        return new Positioned(stream);
    }

    public PositionOutputStream createOrOverwrite(long blockSizeHint) {
        return create(blockSizeHint);
    }

    public boolean supportsBlockSize() {
        return false;
    }

    public long defaultBlockSize() {
        return 0;
    }

    public String getPath() {
        return "stream";
    }

    private static class Positioned extends PositionOutputStream {
        private final OutputStream stream;
        private long at;

        Positioned(OutputStream stream) {
            this.stream = stream;
        }

        public long getPos() {
            return at;
        }

        public void write(int one) throws IOException {
            stream.write(one);
            at++;
        }

        public void write(byte[] some, int from, int many) throws IOException {
            stream.write(some, from, many);
            at += many;
        }

        public void flush() throws IOException {
            stream.flush();
        }

        public void close() throws IOException {
            stream.close();
        }
    }
}
