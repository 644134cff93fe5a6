"""What of a sample's preparation is left to the accelerator: recorded in workers, done in the training process."""
