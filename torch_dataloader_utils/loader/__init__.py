"""What a user holds: the loader, its dataset, and Accelerate's interface to them."""
