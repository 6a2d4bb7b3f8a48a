-- A login for each service, with the rights that it needs and no more. Run it once, after `hwqueue db upgrade`, as the
-- role that ran the upgrade:
--   psql -v ON_ERROR_STOP=1 -v app=app -f deploy/logins.sql
-- app: the database. Give the logins passwords with \password in psql, or let another service make them (Vault, IAM).

-- upgrades: a member of the owner, no superuser
create role queue_deployer login in role hwqueue_owner;
-- programs that spawn; your application's own login can have the role instead
create role queue_producer login in role hwqueue_producer;
-- the same for one tenant alone; then hwqueue tenant grant queue_tenant NAME --right spawn
create role queue_tenant login in role hwqueue_tenants;
-- workers; nodes belong to the login that registers them, so give machines that must not trust each other their own
create role queue_worker login in role hwqueue_worker;
-- hwqueue planner: reads what waits and what is free, and sets prices
create role queue_planner login in role hwqueue_planner;
-- hwqueue serve: makes and checks tokens, and acts for those who show one
create role queue_server login in role hwqueue_admin;
-- metrics, doctor, people on call
create role queue_operator login in role hwqueue_operator;
-- so that doctor sees the transactions of others; only a superuser may, or who has it with admin option:
-- grant pg_read_all_stats to queue_operator;

-- roles hold on the whole server: who cannot connect to this database can do nothing in it
revoke connect on database :"app" from public;
grant connect on database :"app"
  to queue_deployer, queue_producer, queue_tenant, queue_worker, queue_planner, queue_server, queue_operator;

-- one transaction that stays open holds back vacuum, new affinity terms and followers of events
alter role queue_deployer set idle_in_transaction_session_timeout = '1min';
alter role queue_producer set idle_in_transaction_session_timeout = '1min';
alter role queue_tenant set idle_in_transaction_session_timeout = '1min';
alter role queue_worker set idle_in_transaction_session_timeout = '1min';
alter role queue_planner set idle_in_transaction_session_timeout = '1min';
alter role queue_server set idle_in_transaction_session_timeout = '1min';
alter role queue_operator set idle_in_transaction_session_timeout = '1min';
