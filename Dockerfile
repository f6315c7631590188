# torchwise in a container, for CI systems without Python:
#   docker build -t torchwise . && docker run --rm --network none -v "$PWD:/code:ro" torchwise check .
FROM python:3.13-slim AS build
COPY . /src
RUN pip wheel --no-cache-dir --wheel-dir /wheels /src

FROM python:3.13-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels torchwise \
    && useradd --create-home torchwise
USER torchwise
WORKDIR /code
ENTRYPOINT ["python", "-I", "-m", "torchwise_server"]
CMD ["check", "."]
