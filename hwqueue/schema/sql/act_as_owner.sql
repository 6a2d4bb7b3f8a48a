set local role hwqueue_owner;
