"""Django migrations; the tables of the queue have their own, in the package."""
