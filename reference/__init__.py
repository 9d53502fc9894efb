"""LightCAKE in plain PyTorch: imports only torch and itself."""
