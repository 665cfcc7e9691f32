"""The shortest program: one question, one answer."""

from car_client import Client

with Client() as client:
    print(client.infer("What is capacity?", temperature=0).text)
    print("requests at once:", client.capacity)
