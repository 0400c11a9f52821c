"""Study databases to other people's tables and files, and theirs read here. Exports can be made again."""
