"""The schema of the queue, which `hwqueue db upgrade` installs elsewhere; undone, all is dropped.

Not atomic: the schema is installed on a connection of its own. `migrate` upgrades it later on, so a
release of hwqueue brings no migration for it.
"""

from django.db import migrations, models

from hwqueue.contrib.django.schema import install, uninstall


class Migration(migrations.Migration):
    """Installs the schema, and knows the models of the admin, which have no tables."""

    initial = True
    atomic = False
    dependencies = ()
    operations = (
        migrations.RunPython(install, uninstall),
        migrations.CreateModel(
            name="Lease",
            fields=[("lease_id", models.UUIDField(primary_key=True, serialize=False))],
            options={"verbose_name": "lease", "managed": False, "default_permissions": ("view",)},
        ),
    )
