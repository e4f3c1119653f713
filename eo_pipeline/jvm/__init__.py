"""The Java virtual machine: which Java (``java.py``), the command that starts Spark on it
(``submit.py``), and the JVM of a session in this process (``driver.py``). And other processes of
this machine: which one a pid means (``processes.py``), and who has a folder (``locks.py``).
"""
