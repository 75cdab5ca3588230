"""What leaves the process: file formats and inference graphs, written from plain data."""
