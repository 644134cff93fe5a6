"""The PyTorch face: the loader, and callbacks for frameworks that train with it."""
