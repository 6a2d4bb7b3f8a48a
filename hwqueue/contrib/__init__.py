"""What joins the queue to frameworks."""
