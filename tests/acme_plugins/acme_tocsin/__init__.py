"""A site's own plug-ins for Tocsin, each as small as its kind allows."""
