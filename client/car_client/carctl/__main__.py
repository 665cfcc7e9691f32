"""`python -m car_client.carctl`: the command line of the environment that runs it, wherever its programs are."""

from car_client.carctl.main import main

if __name__ == "__main__":
    main()
