"""What can be said of a wrong stage whose cause nobody has named: which elements are wrong, and what they hold."""
