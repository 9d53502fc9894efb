"""LightCAKE in plain PyTorch. The folder imports only torch and itself."""
