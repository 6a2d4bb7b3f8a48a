-- The logins of docker-compose.yml, each with the rights that it needs. Runs in a new database cluster, before
-- `hwqueue db upgrade`, which grants the six roles their rights and leaves those that exist as they are.
create role hwqueue_producer nologin;
create role hwqueue_worker nologin;
create role hwqueue_planner nologin;
create role hwqueue_operator nologin;
create role hwqueue_admin nologin;
create role hwqueue_tenants nologin;
create role queue_node login password 'node' in role hwqueue_worker;
create role queue_admin login in role hwqueue_admin;
-- Who has no password comes through the socket alone (pg_hba of the image: trust there, scram-sha-256 from networks).
alter role hwqueue password null;
revoke connect on database hwqueue from public;
grant connect on database hwqueue
  to hwqueue_producer, hwqueue_worker, hwqueue_planner, hwqueue_operator, hwqueue_admin, hwqueue_tenants;
