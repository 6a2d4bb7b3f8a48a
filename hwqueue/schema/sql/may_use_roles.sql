-- Whether grants.sql can be applied: its roles exist, or the current user may create them.
select
  (select count(*) = cardinality(%(roles)s::text[]) from pg_roles r where r.rolname = any (%(roles)s::text[]))
  or (select u.rolsuper or u.rolcreaterole from pg_roles u where u.rolname = current_user)
