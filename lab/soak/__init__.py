"""What a queue does over many minutes while another session holds an old snapshot."""
