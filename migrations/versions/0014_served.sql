-- Which queues and tasks nodes serve.
select 1;
