"""Settings of the project; the database is named by SHOP_* variables."""

import os
from typing import Any

SECRET_KEY = "of the tests"
USE_TZ = True
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "tests.django_shop.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "hwqueue.contrib.django",
    "tests.django_shop.orders",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES: list[dict[str, Any]] = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
STATIC_URL = "static/"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["SHOP_NAME"],
        "USER": os.environ["SHOP_USER"],
        "PASSWORD": os.environ["SHOP_PASSWORD"],
        "HOST": os.environ["SHOP_HOST"],
        "PORT": os.environ["SHOP_PORT"],
    },
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
}
HWQUEUE = {
    "DATABASE": os.environ.get("SHOP_HWQUEUE_DATABASE", "default"),
    "QUEUES": {"mail": {"max_attempts": 3}},
}
TASKS = {
    "default": {
        "BACKEND": "hwqueue.contrib.django.tasks.HwqueueBackend",
        "QUEUES": ["default", "renders"],
        "OPTIONS": {"max_attempts": 2, "labels": {"from": "shop"}},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
