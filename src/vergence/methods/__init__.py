"""One file per federated method; a method's name is its module's name."""
