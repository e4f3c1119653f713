"""What keeps files elsewhere: object stores, and HDFS. One shape, an implementation each."""
