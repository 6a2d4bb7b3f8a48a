grant hwqueue_owner to current_user;
