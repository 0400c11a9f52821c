"""One question of a user answered: with which draft and gamma to speculate, or not at all."""
