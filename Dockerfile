# The course in a box, for machines on which nothing else may be installed:
#     docker build -t inference-lab .
#     mkdir -p mine
#     docker run --rm -p 8888:8888 -p 8000:8000 -v "$PWD/mine:/course/outputs" inference-lab
# With an NVIDIA card add `--gpus all` (not tried yet; it needs NVIDIA's container toolkit).
# It prints an address for the browser. Your notes are kept in mine/; save notebooks to your own disk from JupyterLab.
FROM python:3.12-slim
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends make gcc libc6-dev git \
    && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home learner && mkdir /course && chown learner /course
USER learner
WORKDIR /course
COPY --chown=learner . .
RUN make setup
ENV PATH=/course/.venv/bin:$PATH
EXPOSE 8888 8000
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--port=8888", "--no-browser", "notebooks"]
