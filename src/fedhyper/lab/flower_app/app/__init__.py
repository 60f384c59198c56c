"""A Flower app with fedhyper: task.py is the learning, client.py and server.py are the federation."""
