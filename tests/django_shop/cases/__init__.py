"""Cases for `manage.py test`, which pytest does not collect by itself."""
