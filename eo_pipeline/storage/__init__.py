"""Storage backends: S3, Google Cloud Storage, Azure Storage and HDFS, behind one protocol."""
