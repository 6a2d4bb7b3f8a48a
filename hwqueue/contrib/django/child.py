"""What a child process of a worker imports: Django set up, and the project's app."""

import django

django.setup()

from hwqueue.contrib.django.loading import load_app  # noqa: E402

app = load_app()
