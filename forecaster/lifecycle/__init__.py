"""How a model comes into service: trained, challenged, promoted, watched and rolled back."""
