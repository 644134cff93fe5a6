"""The reading process of a host: it brings what queued batches need near, for all ranks and jobs of a user."""
