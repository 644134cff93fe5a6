"""What Stoker needs of torch that torch does not promise: its private names, each with the reason, and a check of them."""
