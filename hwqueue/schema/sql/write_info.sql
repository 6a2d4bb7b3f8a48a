-- Note what an upgrade did, and tell of it.
insert into hwqueue.schema_info (revision, bundle_sha256, package_version, roles_installed)
values ({revision}, {bundle_sha256}, {package_version}, {roles_installed})
on conflict (singleton) do update set
  revision = excluded.revision,
  bundle_sha256 = excluded.bundle_sha256,
  package_version = excluded.package_version,
  roles_installed = excluded.roles_installed,
  applied_at = now();
select hwqueue.note_event('schema_upgraded', 'the schema is that of hwqueue ' || {package_version},
  jsonb_build_object('revision', {revision}, 'package_version', {package_version}));
