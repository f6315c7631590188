"""torch.nn in terms of operators: modules, their registries and the one way a module is called."""
