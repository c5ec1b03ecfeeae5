# One image for web, worker, beat, chats and the Ray head; docker-compose.yml says which it is.
FROM python:3.11-slim-bookworm AS base

# The image's own Python is below /usr/local; sandboxes run Debian's.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap util-linux python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 1000 palestra

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /app

# Where torch comes from decides between a CPU and a CUDA build.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY constraints.txt requirements.lock ./
RUN pip install --index-url "$TORCH_INDEX_URL" --extra-index-url https://pypi.org/simple "torch==2.13.0" \
    && pip install --no-deps --constraint constraints.txt --requirement requirements.lock

COPY manage.py pyproject.toml ./
COPY sandboxes sandboxes
COPY engine engine
COPY palestra_env palestra_env
COPY migrations migrations
COPY webapp webapp
COPY workers workers

ENV PYTHONPATH=/app PALESTRA_STATIC_ROOT=/app/static PALESTRA_HOME=/var/lib/palestra PALESTRA_RUNS=/var/lib/palestra/runs
ENV PALESTRA_SANDBOX_TOKENS=/var/lib/palestra/sandboxes/tokens.json
RUN PALESTRA_SECRET_KEY=only-for-building DATABASE_URL=postgres:///none python manage.py collectstatic --noinput \
    && mkdir -p /var/lib/palestra/runs /var/lib/palestra/models /var/lib/palestra/datasets /var/lib/palestra/imports /var/lib/palestra/sandboxes /var/lib/palestra/serving && chown -R palestra /var/lib/palestra
USER palestra
EXPOSE 8700
CMD ["uvicorn", "webapp.asgi:application", "--host", "0.0.0.0", "--port", "8700", "--no-server-header", "--no-access-log", "--lifespan", "off", "--ws-per-message-deflate", "false"]

# Adds the backends that need a GPU.
FROM base AS gpu
USER root
COPY requirements-megatron.lock .
RUN pip install --constraint constraints.txt -r requirements-megatron.lock
# SGLang pins another torch: it has an environment of its own, whose servers the engine starts.
RUN python -m venv /opt/sglang && /opt/sglang/bin/pip install "sglang==0.5.23"
ENV PALESTRA_SGLANG_PYTHON=/opt/sglang/bin/python
USER palestra
