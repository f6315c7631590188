"""What the runtime consults around modules and gradients: sharding."""
