import labkit
