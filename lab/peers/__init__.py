"""Other queues, measured beside hwqueue: one small adapter each."""
