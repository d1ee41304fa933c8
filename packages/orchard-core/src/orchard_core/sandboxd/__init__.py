"""sandboxd: the small daemon inside every sandbox; pure standard library, Python 3.8 or newer.

It is the only way in: exec, files, trees and tunnels travel as frames over one connection.
Nothing here imports the rest of Orchard, so the folder can be shipped as one zipapp.
"""
