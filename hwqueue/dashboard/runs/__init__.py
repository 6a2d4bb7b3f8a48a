"""What the pages about runs and workflows are made of, without a request in sight."""
