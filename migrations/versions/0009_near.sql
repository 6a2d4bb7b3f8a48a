-- it returns came_from, too
drop function if exists hwqueue.list_workflow_steps(uuid, int);
