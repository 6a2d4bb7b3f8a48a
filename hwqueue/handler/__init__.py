"""What a handler is, and what it is given: tasks, their binding, contexts, steps, hooks."""
