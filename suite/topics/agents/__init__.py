"""The door for agents: commands as tools of the Model Context Protocol."""
