-- Nodes and claims belong to a login.
select 1;
