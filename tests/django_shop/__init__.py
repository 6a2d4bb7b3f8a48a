"""A Django project; Django's own test runner runs its cases, for tests/e2e/test_django.py."""
