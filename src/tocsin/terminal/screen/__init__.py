"""The view on the screen: the one door to textual."""
