"""What machine this is: chip, memory, power, heat."""
