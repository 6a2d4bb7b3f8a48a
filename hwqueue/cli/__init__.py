"""The `hwqueue` command line."""
