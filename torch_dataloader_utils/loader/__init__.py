"""What a user holds: the loader, its dataset, and what Accelerate needs of them."""
