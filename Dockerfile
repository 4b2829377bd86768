# docker build -t speed-of-light . && docker run --rm -p 8888:8888 -v "$PWD/work:/course/work" speed-of-light
# With an NVIDIA GPU and its container toolkit, add: --gpus all
FROM python:3.12-slim

# g++: triton builds its launcher with it, and torch.compile its kernels; make and git: the course's own commands.
RUN apt-get update \
 && apt-get install -y --no-install-recommends g++ libc6-dev make git \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /course
COPY requirements.txt constraints.txt ./
RUN python -m pip install --no-cache-dir -r requirements.txt -c constraints.txt
COPY . .
RUN python -m pip install --no-cache-dir --no-build-isolation --no-deps -e .

EXPOSE 8888
# Prints the address with its token.
CMD ["python", "-m", "autograder", "lab", "--ip", "0.0.0.0"]
